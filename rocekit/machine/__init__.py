"""What this machine is and may do: devices, addresses, and whom we may send to."""
