"""Importers of the user's own data: image folders, tables, Hugging Face data sets."""
