//! What the decoder of every binding is put through, in Rust: tokens CHECKPOINT SCORES.

use mnist::{Error, Model};

fn append(model: &mut Model, tokens: &[i32], out: &mut Vec<u8>) -> Result<(), Error> {
    model.append(tokens)?;
    out.extend_from_slice(model.scores().unwrap());
    Ok(())
}

fn refuse<T>(result: Result<T, Error>) {
    match result {
        Ok(_) => println!("not refused"),
        Err(error) => {
            let name = format!("{:?}", error.code).replace("Bad", "BAD_").to_uppercase();
            println!("refused {name}: {error}");
        }
    }
}

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().collect();
    let mut model = Model::create(&words[1])?;
    let mut scores = Vec::new();
    append(&mut model, &[5, 7, 9, 11, 13], &mut scores)?;
    for token in 3..13 {
        append(&mut model, &[token], &mut scores)?;
    }
    refuse(model.append(&[100]));
    refuse(model.append(&[0; 26]));
    refuse(model.append(&[]));
    refuse(model.truncate(16));
    println!("length {} of {}", model.get_length(), model.get_capacity());
    model.truncate(7)?;
    println!("forgotten {}", model.scores().is_none());
    append(&mut model, &[8], &mut scores)?;
    std::fs::write(&words[2], scores).unwrap();
    Ok(())
}
