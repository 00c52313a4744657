"""Bisections: started, advanced, stopped."""
