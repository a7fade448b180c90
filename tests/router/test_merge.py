"""One metrics page out of several."""

from __future__ import annotations

from infctl.router.merge import merged

PAGE = b"""\
# HELP infctl_requests_total Requests answered
# TYPE infctl_requests_total counter
infctl_requests_total{endpoint="a",status="200"} %d.0
# HELP infctl_endpoint_inflight Requests open there
# TYPE infctl_endpoint_inflight gauge
infctl_endpoint_inflight{endpoint="a"} %d.0
# HELP infctl_queued_requests Requests waiting at the router
# TYPE infctl_queued_requests gauge
infctl_queued_requests{priority="interactive"} %d.0
# HELP infctl_request_duration_seconds Arrival to end of answer
# TYPE infctl_request_duration_seconds histogram
infctl_request_duration_seconds_bucket{le="0.1"} 1.0
infctl_request_duration_seconds_bucket{le="+Inf"} 2.0
infctl_request_duration_seconds_count 2.0
infctl_request_duration_seconds_sum 0.25
"""


def test_counts_add_up_and_what_all_see_does_not() -> None:
    other = (
        PAGE % (4, 7, 2) + b"# HELP infctl_new x\n# TYPE infctl_new counter\ninfctl_new_total 1\n"
    )
    text = merged([PAGE % (3, 6, 1), other]).decode().splitlines()
    assert 'infctl_requests_total{endpoint="a",status="200"} 7.0' in text
    assert 'infctl_endpoint_inflight{endpoint="a"} 7.0' in text
    assert 'infctl_queued_requests{priority="interactive"} 3.0' in text
    assert 'infctl_request_duration_seconds_bucket{le="+Inf"} 4.0' in text
    assert "infctl_request_duration_seconds_sum 0.5" in text
    assert "infctl_new_total 1.0" in text
    assert [line for line in text if line.startswith("#")] == [
        line for line in other.decode().splitlines() if line.startswith("#")
    ]


def test_one_page_stays_as_it_is() -> None:
    assert merged([PAGE % (3, 6, 1)]) == PAGE % (3, 6, 1)
