"One shape for all in `generate.py` and `train.py`: 4 layers, d_model 256, 8 heads, vocabulary 10,000, random weights. Needs `pip install -e '.[bench]'`."
from common import *
try: import torchvision
except Exception: sys.modules['torchvision'] = None # transformers would import it for pictures; the CPU builds of the two need not fit
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging
from x_transformers import Decoder, TransformerWrapper
from fastai_txf.model.models import TransformerLM
from fastai_txf.train.losses import chunked_cross_entropy
from fastai_txf.train.compile import compile_for_training

VOCAB,WIDTH,HEADS,LAYERS = 10_000,256,8,4

def ours(max_len=2048, preset='gpt2', **kw): return TransformerLM(preset, vocab_sz=VOCAB, d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_len=max_len, **kw)

def hugging_face(max_len=2048, **kw):
    "GPT-2."
    logging.set_verbosity_error()
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, n_positions=max_len, bos_token_id=None, eos_token_id=None, **kw))

def x_transformers(max_len=2048):
    "A decoder with fused attention."
    return TransformerWrapper(num_tokens=VOCAB, max_seq_len=max_len, attn_layers=Decoder(dim=WIDTH, depth=LAYERS, heads=HEADS, attn_dim_head=WIDTH//HEADS, attn_flash=True))

def workshop(max_len=2048): return WorkshopModel(VOCAB, VOCAB, k=WIDTH, heads=HEADS, depth=LAYERS, max_len=max_len, causal=True)
def nano(max_len=2048): return PlainModel(VOCAB, WIDTH, HEADS, LAYERS, max_len)

class TorchLM(nn.Module):
    "`nn.TransformerEncoder` with a causal mask, learned positions and a tied output."
    def __init__(self, max_len=2048, vocab_sz=VOCAB):
        super().__init__()
        self.emb,self.pos = nn.Embedding(vocab_sz, WIDTH),nn.Embedding(max_len, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4*WIDTH, dropout=0., activation='gelu', batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocab_sz, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        t = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t, device=x.device)
        return self.head(self.blocks(self.emb(x) + self.pos.weight[:t], mask=mask, is_causal=True))

def train_step(name, model, loss_of):
    "A training step of `model`, a function of what `loss_of` takes."
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    def step(*batch):
        loss = loss_of(*batch)
        loss.backward(); opt.step(); opt.zero_grad()
        assert math.isfinite(loss.item()), name
    step.params = n_params(model)
    return step
