//! `gradwire-bindgen MODULE.wasm FOLDER`: the JavaScript beside a module that wasm-bindgen's macros were compiled into.

use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<(), String> {
    let mut args = std::env::args_os().skip(1);
    let (Some(module), Some(folder), None) = (args.next(), args.next(), args.next()) else {
        return Err("a module and a folder to write to are what it takes".to_owned());
    };
    let mut bindgen = Bindgen::new();
    let bindgen = bindgen.input_path(module).typescript(false).omit_default_module_path(false);
    let made = bindgen.web(true).and_then(|bindgen| bindgen.generate(folder));
    made.map_err(|error| format!("{error:#}"))
}
