"""systemd: the text of units, and the calls of `systemctl` that install and remove them."""
