"""The paper's claims, those of other documents, and our bands: ``make claims``.

Each is a row that is measured in the simulator or by arithmetic, and judged over ten seeds.
"""
