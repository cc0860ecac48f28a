# A distilled student on Intel Image Classification; a config adds the student.
_base_ = [
    'models/vit_s14_classifier.py',
    'datasets/intel.py',
    'schedules/finetune_10e.py',
    'runtime_mmpretrain.py',
]

model = dict(head=dict(num_classes=6))
