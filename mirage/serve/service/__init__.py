"""A server as a service of systemd: notifications, the watchdog, a socket that it listens on."""
