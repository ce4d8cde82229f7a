"""The Inductor backend: loop bodies become dataflow programs, and programs artifacts.

Nothing of Inductor is loaded until it compiles something for the device.
"""
