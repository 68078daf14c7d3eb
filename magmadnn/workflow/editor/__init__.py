"""A workflow's file in a browser: forms and text side by side, checked at each change, run from there."""
