"""What is drawn and written of a study."""
