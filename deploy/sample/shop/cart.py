"""What a customer wants to buy."""


class Cart:
    """Items by name, with a price in cents and a number."""

    def __init__(self):
        self.items = {}

    def add(self, name, cents, number=1):
        _, before = self.items.get(name, (cents, 0))
        self.items[name] = (cents, before + number)

    def total(self):
        return sum(cents * number for cents, number in self.items.values())
