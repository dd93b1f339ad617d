from shop.auth import passwords, tokens


class Accounts:
    def __init__(self):
        self.stored = {}

    def register(self, user, password):
        if user in self.stored:
            raise ValueError(f"{user} exists")
        self.stored[user] = passwords.hash_password(password)

    def log_in(self, user, password, now=None):
        stored = self.stored.get(user)
        if stored is None or not passwords.check_password(password, stored):
            return None
        return tokens.issue(user, now)

    def user_of(self, token, now=None):
        return tokens.verify(token, now)
