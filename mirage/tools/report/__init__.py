"""Parts that several reports share: tables, pictures, pages, progress."""
