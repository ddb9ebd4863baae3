#!/usr/bin/env python
# coding: utf-8  # noqa: UP009
"""Notebook exported with nbconvert: everything at module level, cell by cell, names reused."""

# # Fashion classifier
#
# A first look at PyTorch.

# In[1]:

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

torch.__version__  # noqa: B018


# In[2]:


torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(200, 1, 10, 10)
y = (X.mean(dim=(1, 2, 3)) > 0).long()
X.shape, y.shape  # noqa: B018


# In[3]:


trainset = TensorDataset(X[:160], y[:160])
testset = TensorDataset(X[160:], y[160:])
trainloader = DataLoader(trainset, batch_size=16, shuffle=True)
testloader = DataLoader(testset, batch_size=16)
images, labels = next(iter(trainloader))
images.shape  # noqa: B018


# In[4]:


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.fc1 = nn.Linear(6 * 4 * 4, 2)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return self.fc1(x.flatten(1))


net = Net()
net(images).shape  # noqa: B018


# In[5]:


criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
steps = 0


# In[6]:


for epoch in range(2):
    running_loss = 0.0
    for data in trainloader:
        inputs, labels = data
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        steps += 1
        running_loss += loss.item()
    print(f"[{epoch + 1}] loss: {running_loss / len(trainloader):.3f}")


# In[7]:


correct = 0
total = 0
with torch.no_grad():
    for data in testloader:
        images, labels = data
        outputs = net(images)
        correct += (outputs.argmax(1) == labels).sum().item()
        total += labels.size(0)
print("Accuracy:", correct / total)


# Not converged yet, so run the training cell once more with a smaller learning rate.

# In[8]:


optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
for data in trainloader:
    inputs, labels = data
    optimizer.zero_grad()
    loss = criterion(net(inputs), labels)
    loss.backward()
    optimizer.step()
    steps += 1
print("Finished Training", loss.item())


# In[9]:


print(f"steps: {steps}")
