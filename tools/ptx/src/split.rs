//! One module's text, taken apart into a text per family of kernels.

use gradwire_ptx::{FAMILIES, HEAD_LINES, family_of};

use super::text::entries;

/// A text of each family, in the order of [`FAMILIES`]: the head, those of the module's declarations that its kernels
/// use, and its kernels as they were, but for the names of labels.
///
/// A label's name has its kernel's number in the module, which changes whenever another family gains a kernel; labels
/// are their kernel's own, so the number goes.
pub(super) fn families(ptx: &str) -> Result<Vec<(&'static str, String)>, String> {
    let mut parts = parts(ptx);
    let front = parts.remove(0);
    let head: String = front.split_inclusive('\n').take(HEAD_LINES).collect();
    let declarations =
        front.split_inclusive('\n').skip(HEAD_LINES).map(Declaration::read).collect::<Result<Vec<_>, _>>()?;
    let mut bodies = FAMILIES.each_ref().map(|_| String::new());
    for kernel in parts {
        let name = entries(kernel).next().unwrap_or_default();
        let family = family_of(name).ok_or_else(|| {
            format!("no family has the kernel {name}: codecs.rs and ptx/src/lib.rs list them by the kernels' names")
        })?;
        if let Some((_, body)) = FAMILIES.iter().zip(&mut bodies).find(|(f, _)| f.name == family.name) {
            body.push_str(&without_numbers(kernel));
        }
    }
    let mut all = Vec::new();
    for (family, body) in FAMILIES.iter().zip(bodies) {
        if body.is_empty() {
            return Err(format!(
                "the family {} has no kernel: take it out of codecs.rs or ptx/src/lib.rs",
                family.name
            ));
        }
        let used = declarations.iter().filter(|d| d.name.is_none_or(|name| holds(&body, name)));
        let used: String = used.map(|declaration| declaration.line).collect();
        all.push((family.name, [head.as_str(), &used, &body].concat()));
    }
    Ok(all)
}

/// A line of a module in front of its kernels.
struct Declaration<'a> {
    line: &'a str,
    /// What it declares; nothing where it is of the whole module.
    name: Option<&'a str>,
}

impl<'a> Declaration<'a> {
    fn read(line: &'a str) -> Result<Self, String> {
        if line.starts_with(".address_size ") {
            return Ok(Self { line, name: None });
        }
        // Memory of a block: one line each, which names no other one.
        let declared = line.strip_prefix(".shared ").and_then(|rest| rest.trim_end().strip_suffix("];"));
        let name = declared.and_then(|rest| rest.split_whitespace().last()?.split('[').next());
        match name {
            Some(name) => Ok(Self { line, name: Some(name) }),
            None => Err(format!("`{}` in front of the kernels is nothing that can be given to a family", line.trim())),
        }
    }
}

/// What stands in front of the kernels, and then each kernel.
fn parts(ptx: &str) -> Vec<&str> {
    const ENTRY: &str = "\n.visible .entry ";
    let starts: Vec<usize> = ptx.match_indices(ENTRY).map(|(at, _)| at + 1).collect();
    let ends = starts.iter().copied().chain([ptx.len()]);
    [0].into_iter().chain(starts.iter().copied()).zip(ends).map(|(from, to)| &ptx[from..to]).collect()
}

/// `$L__BB24_1` as `$L_1`.
fn without_numbers(kernel: &str) -> String {
    const LABEL: &str = "$L__BB";
    let mut pieces = kernel.split(LABEL);
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        out.push_str("$L");
        out.push_str(piece.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    out
}

/// Whether a text has a name as a whole word.
fn holds(text: &str, name: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(inside) && !text[at + name.len()..].starts_with(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "// it\n.version 7.0\n.target sm_80\n";

    fn module(declarations: &str) -> String {
        let kernels = FAMILIES.iter().enumerate().flat_map(|(i, family)| {
            let name = format!("{}x", family.prefixes[0]);
            [format!(
                ".visible .entry {name}()\n{{\n$L__BB{i}_1:\nld.shared.b32 %r1, [shared_{i}];\nbra $L__BB{i}_1;\n}}\n"
            )]
        });
        [HEAD, ".address_size 64\n", declarations].into_iter().map(str::to_owned).chain(kernels).collect()
    }

    #[test]
    fn each_family_gets_its_kernels_and_what_they_use() {
        let ptx = module(
            ".shared .align 4 .b8 shared_0[8];\n.shared .align 4 .b8 shared_1[8];\n.shared .align 4 .b8 shared_100[8];\n",
        );
        let all = families(&ptx).expect("it can be taken apart");
        assert_eq!(all.len(), FAMILIES.len());
        let (name, second) = &all[1];
        let kernel = format!(
            ".visible .entry {}x()\n{{\n$L_1:\nld.shared.b32 %r1, [shared_1];\nbra $L_1;\n}}\n",
            FAMILIES[1].prefixes[0]
        );
        assert_eq!(*name, FAMILIES[1].name);
        assert_eq!(*second, [HEAD, ".address_size 64\n.shared .align 4 .b8 shared_1[8];\n", &kernel].concat());
        assert!(!all[2].1.contains("shared_1[") && !all.iter().any(|(_, text)| text.contains("shared_100[")));
    }

    #[test]
    fn what_cannot_be_given_to_a_family_is_named() {
        let global = module(".global .align 4 .b8 table[8];\n");
        assert!(families(&global).unwrap_err().contains(".global .align 4 .b8 table[8];"));
        let stranger = module("") + ".visible .entry stranger()\n{\nret;\n}\n";
        assert!(families(&stranger).unwrap_err().contains("the kernel stranger"));
        let whole = module("");
        let last = whole.rfind(".visible .entry").expect("it has kernels");
        assert!(families(&whole[..last]).unwrap_err().contains(FAMILIES[FAMILIES.len() - 1].name));
    }
}
