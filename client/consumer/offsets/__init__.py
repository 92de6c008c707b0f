"""Where a member begins and what it has consumed: broker-side offsets, local offsets, first offsets."""
