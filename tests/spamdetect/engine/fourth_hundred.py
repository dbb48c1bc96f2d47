"""A fourth hundred messages, written before any model was asked about them.

Fifty ordinary ones and fifty scams of today in ten languages. Nothing is tuned to them, and they
may not be changed: once a model has been asked, they only say whether it may be shipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ORDINARY: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        (
            "Kettle's on. Are you two still coming over after football or shall I feed the kids"
            " first?"
        ),
        (
            "Physio at Harcourt Street: your appointment with Niamh is on Tue 14 at 08:40."
            " Please bring shorts. To change it ring 01632 960 118."
        ),
        (
            "I pushed the fix for the flaky upload test: the fixture closed the socket before"
            " the last chunk was read. Can someone rerun CI on #2281? Logs are at"
            " https://ci.fernbyte.dev/runs/90417"
        ),
        (
            "Your card ending 3307 was charged £18.40 at Bramley Garden Centre on 3 March. You"
            " can see the receipt in the app under Activity."
        ),
        (
            "The choir still has space for two altos. We meet on Mondays in the old chapel, no"
            " audition, and the first month is free so that you can see if you like us."
        ),
    ),
    "es": (
        (
            "Mamá pregunta si te llevas el carrito del niño o lo dejamos en casa de la abuela"
            " hasta el domingo."
        ),
        (
            "Taller Hermanos Quiroga: su coche ya está listo. Cambiamos las pastillas de freno"
            " y el filtro de aire, 214 euros en total. Cerramos a las 19:30."
        ),
        (
            "Buenas tardes, le confirmo la visita al piso de la calle Olmo el jueves a las"
            " 17:00. Si le surge algo, dígamelo por aquí y buscamos otro día."
        ),
        (
            "Oye, ¿alguien tiene los apuntes de termodinámica del martes? Me perdí lo del ciclo"
            " de Otto y el parcial cae la semana que viene."
        ),
        (
            "La biblioteca del barrio abre este sábado en horario especial, de 10 a 14. A las"
            " 11 hay cuentacuentos; entrada libre hasta llenar la sala."
        ),
    ),
    "fr": (
        (
            "J'ai oublié mes clés chez toi hier soir, je peux passer vers 18 h en sortant du"
            " bureau ?"
        ),
        (
            "Cabinet du Dr Lemoine : rappel de votre rendez-vous du 22 avril à 10 h 15. Merci"
            " d'apporter votre dernière prise de sang. Pour annuler : 02 99 00 14 56."
        ),
        (
            "Bonjour à tous, le devis du charpentier est arrivé : 7 300 € hors taxes, travaux"
            " en septembre. Je vous propose d'en parler à la réunion de copropriété de lundi."
        ),
        (
            "Votre colis remis par La Fabrique des Lampes est arrivé au relais Tabac du Marché."
            " Vous pouvez le retirer jusqu'au 9 juin avec une pièce d'identité."
        ),
        (
            "Superbe rando ce week-end, même si la descente du col m'a ruiné les genoux. Les"
            " photos sont dans l'album partagé, servez-vous !"
        ),
    ),
    "pt": (
        (
            "Amor, passa na padaria e traz seis pãezinhos e um litro de leite? A Bia já chegou"
            " da escola."
        ),
        (
            "Bom dia! A aula de natação de quinta foi transferida para sexta às 18h porque a"
            " piscina vai estar em manutenção. Qualquer dúvida falem comigo no balcão."
        ),
        (
            "Segue em anexo a ata da reunião de condomínio. A pintura da fachada foi aprovada"
            " por 14 votos a 3 e o rateio começa em agosto, em dez parcelas."
        ),
        (
            "Seu pedido 55821 na Livraria Aurora saiu para entrega hoje. O entregador chega"
            " entre 13h e 18h; se não houver ninguém, ele volta amanhã."
        ),
        (
            "Gente, o jogo mudou pra quadra coberta por causa da chuva. Levem tênis que não"
            " risque o piso e cinco reais pro aluguel."
        ),
    ),
    "sv": (
        (
            "Hej! Tvättstugan är trasig igen, torkskåpet blåser bara kallt. Har någon redan"
            " ringt vaktmästaren?"
        ),
        (
            "Påminnelse från Folktandvården Lindängen: du har tid hos tandhygienist Sara den 6"
            " maj kl. 09.20. Avboka senast dagen innan."
        ),
        (
            "Vi ses vid stationen kvart i åtta, tåget till Östersund går från spår 4. Jag har"
            " köpt mackor till båda."
        ),
        (
            "Protokollet från årsmötet ligger nu på föreningens sida. Medlemsavgiften är"
            " oförändrad, 250 kronor, och betalas som vanligt före sista juni."
        ),
        (
            "Kan du titta på sammanfattningen innan jag skickar den till Johan? Jag är osäker"
            " på tabellen på sidan tre, siffrorna stämmer inte med förra kvartalet."
        ),
    ),
    "cs": (
        (
            "Ahoj, v sobotu stěhujeme tu skříň. Máš ještě od táty ten vozík, nebo si mám půjčit"
            " od souseda?"
        ),
        (
            "Vodárny oznamují: ve středu 12. 6. od 8 do 13 hodin nepoteče v ulici Na Výsluní"
            " voda kvůli výměně armatur. Cisterna bude stát u školky."
        ),
        (
            "Dobrý den, paní učitelko, Ondra má od rána horečku, dnes tedy nepřijde. Úkoly si"
            " zjistíme od spolužáků. Děkuji, Horáková"
        ),
        (
            "Vaše rezervace dvou lístků na představení v pátek v 19.00 je potvrzena. Vyzvedněte"
            " si je prosím v pokladně nejpozději půl hodiny před začátkem."
        ),
        (
            "Ten překlad je výborný, jen bych v druhé kapitole sjednotil jména měst. Poznámky"
            " máš v souboru na disku, nic nespěchá."
        ),
    ),
    "ro": (
        "Ajung pe la șapte, e coadă pe centură. Pune tu apa la fiert pentru paste, te rog.",
        (
            "Stimați locatari, joi între 9 și 15 se oprește căldura pentru înlocuirea pompei"
            " din subsol. Vă mulțumim pentru înțelegere, administratorul."
        ),
        (
            "Ți-am trimis capitolul corectat. Mi-a plăcut finalul, dar dialogul din tren mi se"
            " pare prea lung; vezi comentariile din margine."
        ),
        (
            "Clinica Sfânta Ana: analizele dumneavoastră sunt gata și pot fi ridicate de la"
            " recepție, de luni până vineri, între 8 și 16."
        ),
        (
            "Duminică mergem la cules de prune la bunici. Cine vine cu mașina lui Radu să fie"
            " la blocul nostru la opt."
        ),
    ),
    "tr": (
        "Akşama mercimek çorbası yapıyorum, gelirken iki ekmekle bir limon alır mısın?",
        (
            "Sayın velimiz, 9-B sınıfının müze gezisi yağmur nedeniyle 17 Nisan'a"
            " ertelenmiştir. İzin kâğıtları geçerlidir, yeniden imzalamanıza gerek yoktur."
        ),
        (
            "Abi toplantı odasını üçte bizim ekip ayırtmış, siz yukarıdaki küçük odaya geçer"
            " misiniz? Projeksiyon orada da var."
        ),
        (
            "Veteriner Pati Kliniği: Zeytin'in karma aşısı 3 Mayıs'ta doluyor. Uygun bir saat"
            " için bizi hafta içi arayabilirsiniz."
        ),
        (
            "Dün gece bitirdim kitabı, sonu hiç beklediğim gibi değildi. Sen okuyunca"
            " konuşalım, şimdi söylemeyeyim."
        ),
    ),
    "uk": (
        "Привіт, ти забереш малого з садочка чи мені відпроситися з роботи раніше?",
        (
            "Шановні мешканці, у четвер з 9:00 до 12:00 перевірятимуть ліфти у другому"
            " під'їзді. Просимо користуватися сходами."
        ),
        (
            "Надіслала тобі варіант статті, подивись, будь ласка, вступ і список літератури."
            " Редактор чекає до п'ятниці."
        ),
        (
            "Ваше замовлення №4471 вже у відділенні на вул. Садовій. Безкоштовне зберігання до"
            " 18 жовтня, візьміть із собою документ."
        ),
        (
            "Хлопці, завтра граємо о восьмій на шкільному полі. Немає воротаря, то хай Тарас"
            " бере рукавиці."
        ),
    ),
    "ko": (
        "엄마, 저 오늘 동아리 때문에 좀 늦어요. 저녁은 친구들이랑 먹고 갈게요.",
        (
            "[한빛도서관] 예약하신 '겨울 정원'이 도착했습니다. 이번 주 토요일까지 2층"
            " 데스크에서 찾아가세요."
        ),
        (
            "팀장님, 어제 말씀하신 자료 수정해서 공유 폴더에 올려뒀습니다. 3쪽 그래프만 한 번"
            " 더 봐 주시면 감사하겠습니다."
        ),
        (
            "관리사무소입니다. 수요일 오전 10시부터 정오까지 저수조 청소로 단수됩니다. 미리"
            " 물을 받아 두시기 바랍니다."
        ),
        "이번 주말에 날씨 좋다는데 북한산 갈래? 김밥은 내가 싸 갈게.",
    ),
}

SCAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        (
            "DVLA notice: your vehicle tax payment could not be collected. To avoid a £1,000"
            " fine and clamping, update your billing details today at"
            " https://vehicle-renewal-desk.co/tax"
        ),
        (
            "Hi dad its me, my phone fell in the sink so this is my friends number for now. I"
            " need to pay the garage before 4 and my bank app is locked, can you send £640 and"
            " I'll give it back tomorrow?"
        ),
        (
            "Earn $90 to $320 a day rating hotels from your phone, no experience needed, paid"
            " daily in USDT. We have 12 places left. Message Clara on WhatsApp +1 (202)"
            " 555-0143 to begin."
        ),
        (
            "Your McAfee Total Security has been renewed for 3 years and $479.99 will be"
            " debited within 24 hours. If you did not authorise this payment call our"
            " cancellation team now on 1-888-555-0177."
        ),
        (
            "I bought into this presale because Elon's team is behind it and turned 0.2 ETH"
            " into 4 in nine days. Wallets that connect before midnight get double tokens:"
            " claim-doublepresale.io"
        ),
    ),
    "es": (
        (
            "BBVA: se ha iniciado sesión en su cuenta desde un dispositivo no autorizado. Si no"
            " ha sido usted, verifique sus datos de inmediato en"
            " https://bbva-acceso-verificar.info o será bloqueada."
        ),
        (
            "¡Gana desde casa! Buscamos personas para dar «me gusta» a vídeos, 150 € al día,"
            " pago inmediato por Bizum. Plazas limitadas, escribe a Laura por WhatsApp +34 600"
            " 000 112."
        ),
        (
            "Correos: su paquete está retenido por falta de pago de tasas de aduana (1,79 €)."
            " Abone el importe en las próximas 12 horas para evitar la devolución:"
            " correos-aduana-pago.top"
        ),
        (
            "Hola, soy asesora de inversiones. Con solo 250 euros nuestro robot de trading"
            " genera beneficios garantizados del 30 % semanal. Mis clientes ya se han jubilado."
            " ¿Te mando el enlace de registro?"
        ),
        (
            "Tu cuenta de Netflix ha sido suspendida porque tu último pago fue rechazado."
            " Actualiza tu tarjeta hoy para no perder el acceso:"
            " http://netflix-actualiza-pago.live"
        ),
    ),
    "fr": (
        (
            "Ameli : votre nouvelle carte Vitale est disponible. Remplissez le formulaire et"
            " réglez 0,95 € de frais d'envoi pour rester couvert :"
            " https://ameli-carte-renouvellement.com"
        ),
        (
            "Antai : vous avez une amende impayée de 35 €. Sans règlement sous 24 h elle sera"
            " majorée à 135 €. Payez maintenant sur https://amende-paiement-gouv.net"
        ),
        (
            "Coucou maman, j'ai cassé mon téléphone, c'est mon nouveau numéro. Tu peux m'écrire"
            " sur WhatsApp ? J'ai une facture urgente à payer et je n'ai plus accès à ma"
            " banque."
        ),
        (
            "Prêt entre particuliers sérieux et honnête, de 3 000 € à 500 000 € au taux de 2 %,"
            " sans justificatif, réponse en 24 h même interdit bancaire. Contact :"
            " pret.rapide.duval@example.com"
        ),
        (
            "Félicitations ! Vous avez été tiré au sort pour recevoir un iPhone 16 Pro. Il ne"
            " reste que 5 minutes pour confirmer votre lot et payer 1,95 € de livraison :"
            " gagnant-du-jour.shop"
        ),
    ),
    "pt": (
        (
            "Correios: sua encomenda foi taxada e está parada na alfândega. Pague a taxa de R$"
            " 38,90 via Pix em até 24h para liberar a entrega:"
            " https://correios-taxa-liberacao.com"
        ),
        (
            "Oi pai, troquei de número, salva esse aí. Tô precisando pagar um boleto hoje de R$"
            " 1.850 e meu app do banco travou, consegue fazer o Pix pra mim? Amanhã te devolvo."
        ),
        (
            "Serasa: seu CPF será bloqueado hoje por pendências. Aproveite o acordo com 98% de"
            " desconto e limpe seu nome agora: http://acordo-limpa-cpf.site"
        ),
        (
            "Trabalhe de casa avaliando lojas e ganhe de R$ 300 a R$ 900 por dia, recebimento"
            " na hora. Não precisa experiência. Chama no WhatsApp (11) 90000-0133 e ganhe R$ 50"
            " de bônus."
        ),
        (
            "O jogo do tigre tá pagando muito agora! Deposite R$ 20 e receba R$ 100 de bônus,"
            " saque na hora no Pix. Cadastre-se pelo meu link: tigre-pagante-vip.bet"
        ),
    ),
    "sv": (
        (
            "PostNord: ditt paket kunde inte levereras eftersom tullavgiften på 19 kr saknas."
            " Betala inom 24 timmar, annars returneras det: https://postnord-avgift-se.com"
        ),
        (
            "Swedbank: någon försöker logga in med ditt BankID. Spärra kontot omedelbart genom"
            " att verifiera dig här: https://swedbank-sparra-konto.net"
        ),
        (
            "Hej mamma, min mobil gick sönder och det här är mitt nya nummer. Kan du swisha 6"
            " 500 kr till min kompis? Jag måste betala en räkning idag och lovar att du får"
            " tillbaka i morgon."
        ),
        (
            "Tjäna 2 500 kr om dagen hemifrån! Du behöver bara gilla klipp på TikTok, ingen"
            " erfarenhet krävs och utbetalning varje kväll. Skriv till Emma på WhatsApp nu."
        ),
        (
            "Skatteverket: du har rätt till en skatteåterbäring på 4 870 kr. Ange ditt"
            " kortnummer för att få pengarna utbetalda i dag: skatteverket-aterbaring.info"
        ),
    ),
    "cs": (
        (
            "Česká pošta: vaše zásilka čeká na zaplacení cla 49 Kč. Uhraďte poplatek do 24"
            " hodin, jinak bude vrácena odesílateli: https://posta-clo-platba.top"
        ),
        (
            "Vaše internetové bankovnictví bylo zablokováno z bezpečnostních důvodů. Pro"
            " obnovení přístupu ověřte ihned své přihlašovací údaje a číslo karty zde:"
            " https://kb-overeni-klienta.info"
        ),
        (
            "Ahoj mami, rozbil se mi mobil, tohle je moje nové číslo. Potřebuju dnes zaplatit"
            " fakturu 14 500 Kč a nejde mi bankovnictví, pošleš mi to? Zítra ti peníze vrátím."
        ),
        (
            "Investujte 6 000 Kč do akcií ČEZ a vydělávejte až 40 000 Kč měsíčně bez rizika!"
            " Garantovaný výnos, počet míst je omezen. Registrujte se ještě dnes:"
            " cez-zisk-program.online"
        ),
        (
            "Půjčka ihned na účet až 300 000 Kč bez registru a bez doložení příjmu, schválíme"
            " každému i s exekucí. Poplatek za vyřízení 990 Kč předem. Pište na WhatsApp +420"
            " 700 000 144."
        ),
    ),
    "ro": (
        (
            "Fan Courier: coletul dvs. nu a putut fi livrat din cauza adresei incomplete."
            " Achitați taxa de 3,20 lei în 24 de ore pentru o nouă livrare:"
            " https://fan-livrare-colet.top"
        ),
        (
            "ING: cardul dvs. a fost suspendat pentru activitate suspectă. Confirmați imediat"
            " datele cardului și codul primit prin SMS la https://ing-verificare-cont.info"
        ),
        (
            "Câștigă 500 lei pe zi de acasă dând like la videoclipuri! Fără experiență, plata"
            " în aceeași zi. Mai sunt doar 10 locuri, scrie-i Andreei pe WhatsApp +40 700 000"
            " 155."
        ),
        (
            "Investește 1.200 lei în Hidroelectrica și primești garantat 9.000 lei pe lună."
            " Platforma este aprobată de stat, locurile sunt limitate, înscrie-te azi:"
            " profit-hidro-romania.site"
        ),
        (
            "Bună, te rog votează-o pe fetița mea la concursul de dans, mai are nevoie de"
            " câteva voturi. Intră aici și confirmă cu numărul tău de telefon și codul primit:"
            " vot-dans-copii.com"
        ),
    ),
    "tr": (
        (
            "PTT: Kargonuz adres hatası nedeniyle teslim edilemedi. 14,90 TL ücreti 24 saat"
            " içinde ödemezseniz iade edilecektir: https://ptt-kargo-odeme.top"
        ),
        (
            "Sayın müşterimiz, hesabınızdan 18.750 TL para çıkışı talimatı verilmiştir. İşlem"
            " size ait değilse iptal için hemen giriş yapın: https://garanti-iptal-islem.info"
        ),
        (
            "Evden günde 3.000 TL kazanın! Tek yapmanız gereken ürünleri beğenmek, deneyim"
            " gerekmez, ödeme her akşam. Kontenjan dolmadan Telegram'dan yazın:"
            " @kolaykazanc_destek"
        ),
        (
            "Yeni üyelere 1.000 TL deneme bonusu, yatırım şartı yok! Çevrimsiz kazan, anında"
            " çek. Hemen üye ol: superbahis-bonus900.com"
        ),
        (
            "HGS ihlalli geçiş cezanız bulunmaktadır. Bugün öderseniz %75 indirimle 312 TL,"
            " aksi halde icra işlemi başlatılacaktır: hgs-ceza-odeme.net"
        ),
    ),
    "uk": (
        (
            "ПриватБанк: вашу картку заблоковано через підозрілу операцію. Щоб розблокувати,"
            " терміново підтвердіть номер картки та PIN за посиланням"
            " https://privat-pidtverdzhennya.info"
        ),
        (
            "Виплата допомоги 6 500 грн від ООН для всіх громадян! Заповніть анкету та вкажіть"
            " картку для зарахування, залишився один день: https://dopomoga-oon-viplata.site"
        ),
        (
            "Нова пошта: вашу посилку затримано, неправильна адреса. Сплатіть 18 грн протягом"
            " доби, інакше її буде повернено: nova-poshta-oplata.top"
        ),
        (
            "Шукаємо людей для роботи вдома: ставити лайки у TikTok, 1500–4000 грн на день,"
            " виплати щодня на картку, без досвіду. Пишіть у телеграм @robota_vdoma_ua"
        ),
        (
            "Привіт! Проголосуй, будь ласка, за мою похресницю у конкурсі малюнків, дуже треба."
            " Тут зайдеш через свій телеграм і введеш код: golosuvannya-diti.online"
        ),
    ),
    "ko": (
        (
            "[CJ대한통운] 주소 불일치로 택배가 반송될 예정입니다. 24시간 이내에 주소를 수정하고"
            " 수수료를 결제하세요: http://cj-addr-check.top"
        ),
        (
            "[국민건강보험] 건강검진 결과가 통보되었습니다. 지금 확인하지 않으면 불이익이 있을"
            " 수 있습니다. http://nhis-result.site"
        ),
        (
            "엄마 나 폰 고장나서 수리 맡겼어. 이 번호로 문자 줘. 급하게 결제할 게 있는데 내"
            " 카드가 안 돼서 문화상품권 50만원어치만 사서 핀번호 보내줘."
        ),
        (
            "재택 부업 모집! 하루 30분 유튜브 좋아요만 누르면 일 20만원 당일 지급. 경험 필요"
            " 없음. 선착순 20명, 카톡 아이디 easywork77 로 연락 주세요."
        ),
        (
            "급등주 무료 추천! 이번 주 상한가 3종목 공개, 수익률 300% 보장. VIP 리딩방 지금"
            " 입장하세요: http://vip-stock-room.xyz"
        ),
    ),
}
