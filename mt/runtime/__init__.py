"""The machine: devices, precision, memory, and the processes that train together."""
