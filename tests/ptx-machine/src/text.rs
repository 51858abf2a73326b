//! PTX text in pieces: statements, labels and braces, each with its line. Comments are gone and white space is single.

/// A piece of a module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A brace that opens a body or a scope; the braces of vectors stay in their statement.
    Open,
    /// The brace that closes it.
    Close,
    /// A label, without its colon.
    Label(String),
    /// A directive or an instruction, without its semicolon.
    Statement(String),
}

/// Directives that end with their line.
const LINES: [&str; 5] = [".version", ".target", ".address_size", ".loc", ".file"];

/// Splits a text. Nothing is checked here but that the last statement ends.
pub(crate) fn split(text: &str) -> Result<Vec<(u32, Piece)>, (u32, String)> {
    let mut pieces = Vec::new();
    let mut statement = String::new();
    let mut begun = 1;
    let mut line = 1;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let blank = statement.trim().is_empty();
        match c {
            '/' if chars.peek() == Some(&'/') => {
                while chars.next_if(|c| *c != '\n').is_some() {}
                continue;
            }
            '/' if chars.peek() == Some(&'*') => {
                let mut last = ' ';
                for c in chars.by_ref() {
                    line += u32::from(c == '\n');
                    if last == '*' && c == '/' {
                        break;
                    }
                    last = c;
                }
                continue;
            }
            '\n' => {
                if LINES.iter().any(|directive| statement.trim_start().starts_with(directive)) {
                    pieces.push((begun, Piece::Statement(take(&mut statement))));
                }
                line += 1;
                statement.push(' ');
                continue;
            }
            '{' if blank => pieces.push((line, Piece::Open)),
            '{' if is_function(&statement) => {
                pieces.push((begun, Piece::Statement(take(&mut statement))));
                pieces.push((line, Piece::Open));
            }
            '}' if blank => pieces.push((line, Piece::Close)),
            ':' if is_name(statement.trim()) => pieces.push((begun, Piece::Label(take(&mut statement)))),
            ';' => pieces.push((begun, Piece::Statement(take(&mut statement)))),
            _ => {
                if blank && !c.is_whitespace() {
                    begun = line;
                }
                statement.push(if c.is_whitespace() { ' ' } else { c });
            }
        }
    }
    match statement.trim() {
        "" => Ok(pieces),
        rest => Err((begun, format!("`{rest}` has no end"))),
    }
}

fn take(statement: &mut String) -> String {
    std::mem::take(statement).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_function(statement: &str) -> bool {
    statement.split_whitespace().any(|word| word == ".entry" || word == ".func")
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%'))
}

/// The comma-separated parts of a list, leaving alone what stands in brackets or braces.
pub(crate) fn list(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut from) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    if !text[from..].trim().is_empty() {
        parts.push(text[from..].trim());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_scopes_labels_and_vectors() {
        let text = ".version 7.0 // a\n.target sm_70\n/* b\n c */ .visible .entry k(\n.param .u64 p\n)\n{\n$L__1:\n\
                    @%p1  bra $L__1;\n{ .reg .b32 t; mov.b64 {t, %r1}, %rd1; }\nret;\n}\n";
        let s = |line, text: &str| (line, Piece::Statement(text.to_owned()));
        let expected = vec![
            s(1, ".version 7.0"),
            s(2, ".target sm_70"),
            s(4, ".visible .entry k( .param .u64 p )"),
            (7, Piece::Open),
            (8, Piece::Label("$L__1".to_owned())),
            s(9, "@%p1 bra $L__1"),
            (10, Piece::Open),
            s(10, ".reg .b32 t"),
            s(10, "mov.b64 {t, %r1}, %rd1"),
            (10, Piece::Close),
            s(11, "ret"),
            (12, Piece::Close),
        ];
        assert_eq!(split(text), Ok(expected));
        assert_eq!(split("ret"), Err((1, "`ret` has no end".to_owned())));
        assert_eq!(list("{%r1, %r2}, [%rd1+4], 7"), ["{%r1, %r2}", "[%rd1+4]", "7"]);
    }
}
