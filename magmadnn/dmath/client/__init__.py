"""What runs in the user's program: handles of arrays, the session that posts operations, and functions over
handles.
"""
