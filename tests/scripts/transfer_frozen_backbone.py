"""Transfer learning as in the tutorial: frozen backbone, optimizer over the new head only."""

import copy
import time

import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset


class Backbone(nn.Module):
    """Stands for a pretrained ResNet: features and a final layer called fc."""

    def __init__(self, num_classes=100):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x):
        return self.fc(self.features(x))


def make_images(size):
    labels = torch.randint(0, 2, (size,))
    images = torch.randn(size, 3, 16, 16) + labels[:, None, None, None]
    return TensorDataset(images, labels)


torch.manual_seed(0)
torch.set_num_threads(1)
device = torch.device("cpu")
dataloaders = {
    phase: DataLoader(make_images(size), batch_size=8, shuffle=True)
    for phase, size in (("train", 80), ("val", 40))
}
steps = 0


def train_model(model, criterion, optimizer, scheduler, num_epochs=25):
    global steps
    since = time.time()
    best_weights, best_acc = copy.deepcopy(model.state_dict()), 0.0
    for epoch in range(num_epochs):
        print(f"Epoch {epoch}/{num_epochs - 1}")
        for phase in ["train", "val"]:
            model.train(phase == "train")
            corrects = 0
            for inputs, labels in dataloaders[phase]:
                inputs, labels = inputs.to(device), labels.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                        steps += 1
                corrects += (outputs.argmax(1) == labels).sum().item()
            if phase == "train":
                scheduler.step()
            accuracy = corrects / len(dataloaders[phase].dataset)
            print(f"{phase} acc: {accuracy:.4f}")
            if phase == "val" and accuracy > best_acc:
                best_weights, best_acc = copy.deepcopy(model.state_dict()), accuracy
    print(f"Training complete in {time.time() - since:.2f}s")
    model.load_state_dict(best_weights)
    return model


model_conv = Backbone()
for param in model_conv.parameters():
    param.requires_grad = False
model_conv.fc = nn.Linear(model_conv.fc.in_features, 2)
model_conv = model_conv.to(device)

criterion = nn.CrossEntropyLoss()
optimizer_conv = optim.SGD(model_conv.fc.parameters(), lr=0.01, momentum=0.9)
exp_lr_scheduler = lr_scheduler.StepLR(optimizer_conv, step_size=7, gamma=0.1)
model_conv = train_model(model_conv, criterion, optimizer_conv, exp_lr_scheduler, num_epochs=3)
print(f"steps: {steps}")
