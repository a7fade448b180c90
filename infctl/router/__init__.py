"""The router daemon: an asyncio driver of the Director.

A request's way: `server` reads it, `intake` reduces it to what decisions need, `driver` asks the
Director, `proxy` carries it to an endpoint over a pooled `upstream` connection and the answer back.
"""
