"""Neural style transfer: LBFGS with a closure over the input image, the network itself frozen.

The count is the number of optimizer.step calls, each of which evaluates the closure many times.
"""

import torch
from torch import nn, optim

torch.manual_seed(0)
torch.set_num_threads(1)


class Normalization(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, img):
        return (img - self.mean) / self.std


def gram_matrix(features):
    a, b, c, d = features.size()
    flat = features.view(a * b, c * d)
    return torch.mm(flat, flat.t()).div(a * b * c * d)


class ContentLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target.detach()

    def forward(self, x):
        self.loss = nn.functional.mse_loss(x, self.target)
        return x


class StyleLoss(nn.Module):
    def __init__(self, target_feature):
        super().__init__()
        self.target = gram_matrix(target_feature).detach()

    def forward(self, x):
        self.loss = nn.functional.mse_loss(gram_matrix(x), self.target)
        return x


def get_model_and_losses(cnn, style_img, content_img):
    model = nn.Sequential(Normalization([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    style_losses, content_losses = [], []
    for i, layer in enumerate(cnn.children()):
        model.add_module(f"layer_{i}", layer)
        if isinstance(layer, nn.Conv2d):
            content_loss = ContentLoss(model(content_img))
            model.add_module(f"content_loss_{i}", content_loss)
            content_losses.append(content_loss)
            style_loss = StyleLoss(model(style_img))
            model.add_module(f"style_loss_{i}", style_loss)
            style_losses.append(style_loss)
    return model, style_losses, content_losses


def run_style_transfer(
    cnn, content_img, style_img, input_img, num_steps=200, style_weight=1000, content_weight=1
):
    print("Building the style transfer model..")
    model, style_losses, content_losses = get_model_and_losses(cnn, style_img, content_img)
    input_img.requires_grad_(True)
    model.eval()
    model.requires_grad_(False)
    optimizer = optim.LBFGS([input_img])

    print("Optimizing..")
    run = [0]
    calls = 0
    while run[0] <= num_steps:

        def closure():
            with torch.no_grad():
                input_img.clamp_(0, 1)
            optimizer.zero_grad()
            model(input_img)
            style_score = sum(sl.loss for sl in style_losses) * style_weight
            content_score = sum(cl.loss for cl in content_losses) * content_weight
            loss = style_score + content_score
            loss.backward()
            run[0] += 1
            if run[0] % 50 == 0:
                print(
                    f"run {run}: Style {style_score.item():.4f} Content {content_score.item():.4f}"
                )
            return style_score + content_score

        optimizer.step(closure)
        calls += 1

    with torch.no_grad():
        input_img.clamp_(0, 1)
    return calls


cnn = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
content_img, style_img = torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12)
total = run_style_transfer(cnn.eval(), content_img, style_img, content_img.clone())
print(f"steps: {total}")
