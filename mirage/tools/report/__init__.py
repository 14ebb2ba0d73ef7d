"""What reports share: tables, pictures, pages, progress."""
