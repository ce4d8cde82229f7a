"""Ops as the smallest compiled programs: the table of them, how each is traced, and what comes.

``torch_spyre_ref.eager`` holds the decision: the key of a call, the cache, a hit and a miss. What a
miss does lies here.
"""
