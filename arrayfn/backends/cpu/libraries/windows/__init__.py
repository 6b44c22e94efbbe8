"""Windows copied side by side, and multiplied while they are near."""
