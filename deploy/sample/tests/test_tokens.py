import unittest

from shop.auth import tokens


class TokenTests(unittest.TestCase):
    def test_a_fresh_token_names_its_user(self):
        token = tokens.issue("ann", now=1000)
        self.assertEqual(tokens.verify(token, now=1001), "ann")

    def test_an_old_token_is_refused(self):
        token = tokens.issue("ann", now=1000)
        self.assertIsNone(tokens.verify(token, now=1000 + tokens.LIFETIME + 1))

    def test_a_changed_token_is_refused(self):
        token = tokens.issue("ann", now=1000)
        self.assertIsNone(tokens.verify(token.replace("ann", "bob"), now=1001))

    def test_refreshing_gives_more_time(self):
        token = tokens.issue("ann", now=1000)
        later = tokens.refresh(token, now=2000)
        self.assertEqual(tokens.verify(later, now=1000 + tokens.LIFETIME + 1), "ann")


if __name__ == "__main__":
    unittest.main()
