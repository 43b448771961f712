//! What bindgen makes of PCP's headers (`build.rs`).
#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    dead_code,
    missing_debug_implementations,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    unknown_lints,
    unnecessary_transmutes,
    unused_qualifications
)]

include!(concat!(env!("OUT_DIR"), "/pmda.rs"));
