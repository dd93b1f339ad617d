//! A Messages stream of any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| model_client::fuzzing::messages(data));
