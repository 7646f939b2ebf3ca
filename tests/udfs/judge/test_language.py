"""Texts that are clearly not in English."""

from __future__ import annotations

import pytest

from untold.udfs.judge.model import is_english

FOREIGN = {
    "German": "Die Bienen sammeln den Nektar auf der Wiese und werden von dem Imker nicht gestört.",
    "French": "Les abeilles volent dans les prés avec les bourdons et elles ne sont pas seules en été.",
    "Spanish": "Las abejas vuelan por el campo y no se cansan, pero en invierno están en su colmena con la reina.",
    "Italian": "Le api volano nei prati con i bombi e non sono sole, ma si nascondono per il freddo della notte.",
    "Portuguese": "As abelhas não voam no inverno, mas são muito ativas pela manhã com uma rainha nova.",
    "Dutch": "De bijen vliegen niet in de winter, maar ze zijn er wel en worden door het volk naar voren gebracht.",
    "Swedish": "Bina flyger inte på vintern och de är kvar i kupan med drottningen som är för stor.",
    "Danish": "Bierne flyver ikke om vinteren og de er i stadet med dronningen, som er for stor til det.",
    "Polish": "Pszczoły nie latają w zimie i są w ulu z królową, która jest dla nich bardzo ważna.",
    "Turkish": "Arılar kışın uçmaz ve kovanda bir kraliçe ile birlikte olur, ancak bu çok önemli değil.",
    "Indonesian": "Lebah tidak terbang pada musim dingin dan berada di sarang dengan ratu yang besar.",
    "Russian": "Пчёлы делают мёд.",
    "Chinese": "蜜蜂酿蜜。",
    "Arabic": "النحل يصنع العسل.",
    "Hindi": "मधुमक्खियाँ शहद बनाती हैं।",
}
ENGLISH = [
    "Bees make honey.",
    "Three people survived the expedition: Álvar Núñez Cabeza de Vaca, Andrés Dorantes de Carranza, and Estevanico.",
    "Members: Ludwig van Beethoven, Otto von Bismarck, Leonardo da Vinci, Antonio di Pietro, Rio de la Plata",
    "The song 'La vie en rose' by Édith Piaf is in French.",
    "The Greek letters α, β and γ are angles.",
    "42 %",
    "aspirin 100 mg, ibuprofen 400 mg, paracetamol 500 mg, omeprazole 20 mg, metformin 850 mg",
]


@pytest.mark.parametrize("language", FOREIGN)
def test_a_text_in_another_language_is_recognised(language: str) -> None:
    assert not is_english(FOREIGN[language])


@pytest.mark.parametrize("text", ENGLISH)
def test_names_numbers_and_quotes_leave_a_text_english(text: str) -> None:
    assert is_english(text)
