"""Why a case moved."""
