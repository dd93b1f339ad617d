import unittest

from shop.auth.session import Accounts


class SessionTests(unittest.TestCase):
    def setUp(self):
        self.accounts = Accounts()
        self.accounts.register("ann", "correct horse")

    def test_logging_in_gives_a_token_of_the_user(self):
        token = self.accounts.log_in("ann", "correct horse", now=1000)
        self.assertEqual(self.accounts.user_of(token, now=1001), "ann")

    def test_a_wrong_password_gives_nothing(self):
        self.assertIsNone(self.accounts.log_in("ann", "battery staple"))

    def test_a_name_is_taken_once(self):
        with self.assertRaises(ValueError):
            self.accounts.register("ann", "again")


if __name__ == "__main__":
    unittest.main()
