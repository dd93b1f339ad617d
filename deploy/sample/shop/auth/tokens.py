"""Tokens that a client shows with each request: `user.expiry.signature`."""

import hashlib
import hmac
import time

SECRET = b"change-me"
LIFETIME = 3600


def sign(payload):
    return hmac.new(SECRET, payload.encode(), hashlib.sha256).hexdigest()


def issue(user, now=None):
    now = time.time() if now is None else now
    payload = f"{user}.{int(now) + LIFETIME}"
    return f"{payload}.{sign(payload)}"


def verify(token, now=None):
    now = time.time() if now is None else now
    parts = token.split(".")
    if len(parts) != 3:
        return None
    user, expiry, signature = parts
    if signature != sign(f"{user}.{expiry}"):
        return None
    if int(expiry) < now:
        return None
    return user


def refresh(token, now=None):
    now = time.time() if now is None else now
    parts = token.split(".")
    if len(parts) != 3:
        return None
    user, expiry, signature = parts
    if signature != sign(f"{user}.{expiry}"):
        return None
    if int(expiry) < now:
        return None
    return issue(user, now)
