"""The supervisor's side of its router: the table it sends, requests it admits, the process it
keeps.
"""
