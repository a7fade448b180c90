"""What a run is: asked for, measured, summed up, shown. Shared by bench and sim."""
