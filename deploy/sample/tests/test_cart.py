import unittest

from shop.cart import Cart


class CartTests(unittest.TestCase):
    def test_the_total_counts_every_piece(self):
        cart = Cart()
        cart.add("tea", 450)
        cart.add("tea", 450)
        cart.add("cup", 1200)
        self.assertEqual(cart.total(), 2100)


if __name__ == "__main__":
    unittest.main()
