"What an attack on the library found: nothing wrong in silence, no crash without a word, nothing lost"
import types, pytest, torch
from torch import nn
from fastai.text.all import load_learner
from fastai_txf.all import (
    CharTokenizer, Seq2SeqDataLoaders, generate, transformer_mlm_learner, transformer_seq2seq_learner)
from fastai_txf.base.shadow import kept_shadow, shadow
from fixtures import SMALL, df, dls, dls_lm, dls_multi, dls_reg, make, make_dls, quiet

DROP = dict(p=0.5, emb_p=0.5, attn_p=0.5) # a lost evaluation mode changes every answer
TEXT = 'music warm clever dull film'

# Shadows

class Twice(nn.Module):
    "Parts with dropout, of which a list has the second names"
    def __init__(self):
        super().__init__()
        self.a,self.b = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)), nn.Linear(4, 4)
        self.parts = [self.a, self.b]
    def forward(self, x):
        for part in self.parts: x = part(x)
        return x

def _wrapped(m):
    old = m.forward
    m.forward = lambda x: 2*old(x)

def _bound(m): m.forward = types.MethodType(lambda self, x: 2*type(self).forward(self, x), m)

def _by_a_global_name(m):
    scope = dict(old=m.forward)
    exec('def forward(x): return 2*old(x)', scope)
    m.forward = scope['forward']

@pytest.mark.parametrize('change', [_wrapped, _bound, _by_a_global_name])
@pytest.mark.parametrize('copy', [shadow, kept_shadow])
def test_a_forward_replaced_by_hand_is_the_shadows_own(change, copy):
    m,x = Twice(), torch.randn(3, 4)
    want = m.eval()(x)
    m.train()
    torch.testing.assert_close(copy(m)(x), want)     # parts in a list are the shadow's, too
    change(m)
    torch.testing.assert_close(copy(m)(x), 2*want)
    assert m.training and m.parts[0] is m.a and m.a.training

def test_a_kept_shadow_sees_another_class():
    m,x = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4)
    before = kept_shadow(m)(x)
    class Double(nn.Linear):
        def forward(self, x): return 2*super().forward(x)
    m[0].__class__ = Double
    torch.testing.assert_close(kept_shadow(m)(x), 2*before)
