"""Which launches become one."""
