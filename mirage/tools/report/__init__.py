"""Parts that reports share: tables, pictures, pages, progress."""
