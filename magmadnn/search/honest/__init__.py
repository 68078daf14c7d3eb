"""Honest figures of a search: nested cross validation, and an audit for leaks."""
