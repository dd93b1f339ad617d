import unittest

from shop.auth import passwords


class PasswordTests(unittest.TestCase):
    def test_the_right_password_passes(self):
        stored = passwords.hash_password("correct horse")
        self.assertTrue(passwords.check_password("correct horse", stored))

    def test_a_wrong_password_does_not(self):
        stored = passwords.hash_password("correct horse")
        self.assertFalse(passwords.check_password("battery staple", stored))


if __name__ == "__main__":
    unittest.main()
