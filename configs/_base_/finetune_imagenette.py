# A distilled student on Imagenette; a config adds the student.
_base_ = [
    'models/vit_s14_classifier.py',
    'datasets/imagenette.py',
    'schedules/finetune_10e.py',
    'runtime_mmpretrain.py',
]

model = dict(head=dict(num_classes=10))
