"""Knowledge distillation: train a teacher, then a student on the teacher's soft targets.

The count is the teacher's optimizer steps plus the student's.
"""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(42)
x = torch.randn(256, 16)
y = x.view(256, 4, 4).sum(-1).argmax(1)
train_loader = DataLoader(TensorDataset(x[:192], y[:192]), batch_size=16, shuffle=True)
test_loader = DataLoader(TensorDataset(x[192:], y[192:]), batch_size=32)
teacher = nn.Sequential(
    nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 4)
)
student = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def train(model, train_loader, epochs, learning_rate):
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=learning_rate)
    steps = 0
    model.train()
    for epoch in range(epochs):
        running_loss = 0.0
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            steps += 1
            running_loss += loss.item()
        print(f"Epoch {epoch + 1}/{epochs}, Loss: {running_loss / len(train_loader)}")
    return steps


def test(model, test_loader):
    model.eval()
    with torch.no_grad():
        correct = sum((model(a).argmax(1) == b).sum().item() for a, b in test_loader)
    accuracy = 100 * correct / len(test_loader.dataset)
    print(f"Test Accuracy: {accuracy:.2f}%")
    return accuracy


def train_knowledge_distillation(teacher, student, loader, epochs, learning_rate, temperature):
    ce_loss = nn.CrossEntropyLoss()
    optimizer = optim.Adam(student.parameters(), lr=learning_rate)
    steps = 0
    teacher.eval()
    student.train()
    for epoch in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                teacher_logits = teacher(inputs)
            student_logits = student(inputs)
            soft_targets = nn.functional.softmax(teacher_logits / temperature, dim=-1)
            soft_prob = nn.functional.log_softmax(student_logits / temperature, dim=-1)
            soft_loss = torch.sum(soft_targets * (soft_targets.log() - soft_prob)) / len(inputs)
            loss = 0.25 * soft_loss * temperature**2 + 0.75 * ce_loss(student_logits, labels)
            loss.backward()
            optimizer.step()
            steps += 1
        print(f"Epoch {epoch + 1}/{epochs}, Loss: {loss.item()}")
    return steps


total = train(teacher, train_loader, epochs=1, learning_rate=0.001)
test(teacher, test_loader)
total += train_knowledge_distillation(teacher, student, train_loader, 2, 0.001, temperature=2)
test(student, test_loader)
print(f"steps: {total}")
