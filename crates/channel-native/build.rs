//! Compiles `entrain_host.h` twice: as it is, and with the accesses to shared memory in the model's hands.

fn main() {
    println!("cargo:rerun-if-changed=../channel/include");
    println!("cargo:rerun-if-changed=src/native");
    let build = |name: &str, define: &str| {
        cc::Build::new()
            .file("src/native/side.c")
            .include("../channel/include")
            .define(define, None)
            .flag("-std=gnu11")
            // A check that fails in an access of the model's unwinds through the C code.
            .flag("-fexceptions")
            .warnings(true)
            .warnings_into_errors(true)
            .opt_level(2)
            .compile(name);
    };
    build("entrain_native", "ENTRAIN_NATIVE");
    build("entrain_model", "ENTRAIN_MODEL");
}
