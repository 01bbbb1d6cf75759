//! What must not compile, each because it would be unsound or wrong if it did; the compiler's words are compared. Programs of
//! one file are refused in one pass of the compiler. `TRYBUILD=overwrite cargo test -p partage --test misuse` writes the words
//! anew, to be read before they are committed.

#[test]
fn is_refused() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
