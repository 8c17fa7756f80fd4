"""What an attacker may try, and what secrets keep from him: forging, planting, signing, encryption."""
