//! Stand-ins for every port, stepped by hand.
