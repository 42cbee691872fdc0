//! @purpose@ from Rust: cargo run --example example --@arguments@

//@if train_step or infer@
use @name@::{Dtype, Error, Model, Phase};
//@end@
//@if append !train_step !infer@
use @name@::{Error, Model};
//@end@

//@if train_step or infer@
struct Draw(u32);

impl Draw {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    fn next_number(&mut self) -> f32 {
        self.next() as f32 / (1 << 24) as f32
    }

    /// Make up a batch for each input, in place; a real program writes its data here.
    fn write_batches(&mut self, model: &mut Model, phase: Phase) {
        for index in 0..model.input_count(phase) {
            let Some(tensor) = model.input_info(phase, index) else { continue };
            let dtype = tensor.dtype;
            let size = tensor.bytes / tensor.dims.iter().product::<i64>() as usize;
            for value in model.input(phase, index).unwrap_or(&mut []).chunks_exact_mut(size) {
                match dtype {
                    Dtype::F32 => value.copy_from_slice(&self.next_number().to_ne_bytes()),
                    Dtype::F64 => value.copy_from_slice(&f64::from(self.next_number()).to_ne_bytes()),
                    _ => value.copy_from_slice(&u64::from(self.next() % 2).to_le_bytes()[..size]),
                }
            }
        }
    }
}

//@end@
//@if train_step@
fn train(model: &mut Model) -> Result<(), Error> {
    let mut draw = Draw(1);
    model.set_learning_rate(0.01)?;
    for step in 1..=20 {
        draw.write_batches(model, Phase::Train);
        model.train_step(&[])?; // or `&[images[..].into(), ...]`, which copies them
        let loss = model.item(Phase::Train, 0)?;
        if !model.is_joined() {
            model.optimizer_step()?;
        }
        model.lazy_reset_grad();
        println!("step {step}: loss {loss:.6}");
    }
    Ok(())
}

//@end@
//@if infer !train_step@
fn answer(model: &mut Model) -> Result<(), Error> {
    Draw(1).write_batches(model, Phase::Infer);
    model.infer(&[])?; // or `&[images[..].into()]`, which copies them
    for index in 0..model.output_count(Phase::Infer) {
        let name = model.output_info(Phase::Infer, index).map_or("", |tensor| tensor.name).to_string();
        match model.floats(Phase::Infer, index) {
            Ok(values) => println!("{name}: {:?} ...", &values[..values.len().min(3)]),
            Err(other) => println!("{name}: {other}"),
        }
    }
    Ok(())
}

//@end@
//@if append@
/// Continue a text: append the token with the largest score, again and again.
fn continue_text(model: &mut Model) -> Result<(), Error> {
    let mut token = 0;
    print!("text:");
    while model.get_length() < model.get_capacity().min(10) {
        print!(" {token}");
        model.append(&[token])?;
        let scores = model.scores().unwrap_or(&[]).chunks_exact(4);
        let scores: Vec<f32> = scores.map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        token = (0..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best }) as i32;
    }
    println!();
    Ok(())
}

//@end@
fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
//@if train_step@
    if arguments.len() != 3 {
        eprintln!("usage: example CHECKPOINT NEW_CHECKPOINT");
        std::process::exit(2);
    }
//@end@
    let mut model = match arguments.get(1) {
        Some(path) => Model::create(path)?,
        None => Model::create_without_values()?,
    };
//@if train_step@
    train(&mut model)?;
    model.save(&arguments[2], true)?;
//@end@
//@if infer !train_step@
    answer(&mut model)?;
//@end@
//@if append@
    continue_text(&mut model)?;
//@end@
    Ok(())
}
