"""The files of ``cases/`` run in processes of their own: see test_bridge.py."""

collect_ignore = ["cases"]
