//! @purpose@ from Rust: cargo run --example example --@arguments@

//@if train_step or infer@
use @name@::{Dtype, Error, Model, Phase, Values};
//@end@
//@if append !train_step !infer@
use @name@::{Error, Model};
//@end@

//@if train_step or infer@
/// A batch for one input; a program would read its own here.
enum Batch {
    Floats(Vec<f32>),
    Labels(Vec<i64>),
}

struct Draw(u32);

impl Draw {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    fn make_batches(&mut self, model: &Model, phase: Phase) -> Vec<Batch> {
        let tensors = (0..model.input_count(phase)).filter_map(|i| model.input_info(phase, i));
        tensors
            .map(|tensor| {
                let count = 0..tensor.dims.iter().product::<i64>();
                match tensor.dtype {
                    Dtype::F32 => {
                        Batch::Floats(count.map(|_| self.next() as f32 / (1 << 24) as f32).collect())
                    }
                    _ => Batch::Labels(count.map(|_| i64::from(self.next() % 2)).collect()),
                }
            })
            .collect()
    }
}

fn borrow(batches: &[Batch]) -> Vec<Values<'_>> {
    let pass = |batch| match batch {
        &Batch::Floats(ref values) => values[..].into(),
        &Batch::Labels(ref values) => values[..].into(),
    };
    batches.iter().map(pass).collect()
}

//@end@
//@if train_step@
fn train(model: &mut Model) -> Result<(), Error> {
    let mut draw = Draw(1);
    model.set_learning_rate(0.01)?;
    for step in 1..=20 {
        let batches = draw.make_batches(model, Phase::Train);
        model.train_step(&borrow(&batches))?;
        let loss = model.floats(Phase::Train, 0)?[0];
        if !model.is_joined() {
            model.optimizer_step()?;
        }
        model.lazy_reset_grad();
        println!("step {step}: loss {loss}");
    }
    Ok(())
}

//@end@
//@if infer !train_step@
fn answer(model: &mut Model) -> Result<(), Error> {
    let batches = Draw(1).make_batches(model, Phase::Infer);
    model.infer(&borrow(&batches))?;
    for index in 0..model.output_count(Phase::Infer) {
        let name = model.output_info(Phase::Infer, index).map_or("", |tensor| tensor.name).to_string();
        println!("{name}: {:?} ...", &model.floats(Phase::Infer, index)?[..3]);
    }
    Ok(())
}

//@end@
//@if append@
/// Continue a text, each time by the token with the largest score.
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
    let mut model = match arguments.get(1) {
        Some(path) => Model::create(path)?,
        None => Model::create_from(&[])?,
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
