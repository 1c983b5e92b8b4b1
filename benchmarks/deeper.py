"""Characters of tinyshakespeare, to the loss that nanoGPT publishes for a GPU: how many minutes of a CPU's cores that takes.

nanoGPT's setting there is 6 layers of width 384, 256 characters of context, 64 rows, 5,000 steps, and its best validation loss 1.4697. Here size and schedule are our own: `transformer_lm_learner` with the preset
`modern` and `muon`, in bfloat16 where the processor has units for it, for so many minutes of the processor. The loss is over the whole last tenth of the text, in windows of 128 that do not overlap,
at the end of the training: nothing is chosen on it. Adds a line to results/deeper.jsonl."""
from fastai.text.all import *
from fastai_txf.all import *
from common import *

PUBLISHED = 1.4697
SHAPE = dict(d_model=192, n_heads=6, n_layers=5, max_len=128, p=0.1, emb_p=0.1)
RECIPE = dict(bs=16, seq_len=128, lr=7e-3, wd=0.1, warmup=0.05, decay=0.95)

class Say(Callback):
    "How far it is."
    order,needs_logits = 80,False
    def after_batch(self):
        if self.training and self.train_iter % 100 == 0: print(f'{self.train_iter:,} steps, {100*self.pct_train:.0f} %: {float(self.smooth_loss):.3f}', flush=True)

def run(minutes, seed):
    "A row."
    recipe = dict(RECIPE)
    dls = LMDataLoaders.from_texts(*[[t] for t in read_shakespeare()], tok_tfm=CharTokenizer(), starts=False, windows='random', epoch_len=100_000, bs=recipe.pop('bs'), seq_len=recipe['seq_len'])
    valid = torch.from_numpy(dls.valid.flat.ids.astype(np.int64))
    set_seed(seed)
    learn = transformer_lm_learner(dls, 'modern', opt_func=muon, **SHAPE)
    if half := '_bf16' in features(): learn.to_bf16()
    start,wall = time.process_time(),time.perf_counter()
    seq_len,lr = recipe.pop('seq_len'),recipe.pop('lr')
    with learn.no_bar(), learn.no_logging(): learn.fit_wsd(1, lr, cbs=[core_minutes(minutes), Say()], **recipe)
    spent = dict(core_minutes=(time.process_time()-start)/60, minutes=(time.perf_counter()-wall)/60)
    with torch.no_grad(): loss = token_losses(learn.model.eval(), valid, seq_len).mean().item()
    return dict(seed=seed, shape=SHAPE, recipe=RECIPE, half=half, steps=len(learn.recorder.lrs), loss=loss, **spent, params=n_params(learn.model))

def render(rows):
    "The results as markdown."
    cols = {'layers':lambda r: r['shape']['n_layers'], 'width':lambda r: r['shape']['d_model'], 'seed':'seed', 'valid loss':lambda r: f"{r['loss']:.4f}", 'minutes of one core':lambda r: f"{r['core_minutes']:.1f}",
            'of the clock':lambda r: f"{r['minutes']:.1f}", 'steps':'steps', 'in bfloat16':lambda r: 'yes' if r['half'] else 'no', 'parameters':'params'}
    return f'# To the loss of a GPU\n\nWritten by `python benchmarks/deeper.py`. Published for nanoGPT with 6 layers of width 384 on a GPU: a validation loss of {PUBLISHED}.\n\n{table(rows, cols)}\n{ran_with(rows, env=None)}'

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--minutes', type=float, default=40, help='of the processor; fewer than ten are only tried unless --out is given')
    p.add_argument('--seed', type=int, default=0)
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    p.add_argument('--out', type=Path, default=None, help='folder of the results')
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    file = (args.out or HERE/'results')/'deeper.jsonl'
    row = {**run(args.minutes, args.seed), **about(args.threads)}
    if args.minutes < 10 and not args.out: return print(render([row]))
    add_row(file, row)
    file.with_suffix('.md').write_text(text := render(read_rows(file)))
    print(text)

if __name__ == '__main__': main()
