"""Data of the user's own: image folders, tables, Hugging Face data sets."""
